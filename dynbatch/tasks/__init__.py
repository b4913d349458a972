"""Tasks: what is learned from a file of text, by name, with one way to train."""

from dynbatch.tasks.forms import task_of
from dynbatch.tasks.registry import TASKS, load_task
from dynbatch.tasks.task import LabellingTask, Parts, Task, WritingTask

__all__ = ["TASKS", "LabellingTask", "Parts", "Task", "WritingTask", "load_task", "task_of"]
