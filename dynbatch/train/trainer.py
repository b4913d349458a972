"""`Trainer`: a training loop that can be stopped at any moment and resumed to the same bits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from operator import length_hint
from pathlib import Path

from dynbatch.arguments import size, switch
from dynbatch.errors import NumericError
from dynbatch.interrupts import Terminated, deferred_interrupt, terminable
from dynbatch.train.advisor import Advisor
from dynbatch.train.lock import locked
from dynbatch.train.metrics import Record, validated
from dynbatch.train.prepared import started
from dynbatch.train.progress import NOT_SAVED, Progress, tell, tell_backend
from dynbatch.train.protocols import Example
from dynbatch.train.records import RunRecords
from dynbatch.train.result import TrainingResult
from dynbatch.train.saved_run import SavedRun
from dynbatch.train.settings import TrainerSettings
from dynbatch.train.stopping import EarlyStopping
from dynbatch.train.unoptimized import warn_of_unoptimized
from dynbatch.train.update import Update, differentiate


@dataclass
class Trainer(TrainerSettings):
    """Trains a model: a graph for each mini-batch, its loss, backward, clipping, an update.

    Args:
        model:            a `models.Module`.
        optimizer:        its optimizer. `fit` warns of parameters that get a gradient in the first
                          mini-batch, and that the optimizer does not have.
        loss_function:    loss_function(graph, model, example) -> scalar node, for one example. A
            method model.loss(graph, *example) is given as
            lambda graph, model, example: model.loss(graph, *example).
        loss_of_batch:    the loss function takes a mini-batch, and returns the list of its losses:
                          loss_function(graph, model, examples), for `models.BatchNorm`.
        batches:          gives the mini-batches of epoch n, always the same, as `batches.epoch(n)`.
        num_tokens:       tokens that an example's loss was summed over. The loss of a mini-batch is
                          then Σ loss / Σ num_tokens, in nats per token; without it, the mean over
                          the examples.
        accumulate:       mini-batches of one update, whose gradients add up: the update is that of
                          one large mini-batch, with one mean over all of its tokens, and takes the
                          memory of a small one. The last update of an epoch has what is left.
        schedule:         stepped after each update, or after each validation if it needs a metric.
        clip_norm:        largest norm of all gradients together.
        average:          a running mean of the weights, `optim.Average(model, decay=0.999)`.
                          Validations and the best checkpoint have the mean; afterwards
                          `with average.applied():` has it too.
        validate:         validate(model) -> metric, at each epoch's end, in evaluation mode. Of
                          several by name, {"exact match": 0.9, ...}, the first one decides which
                          model is best; files and pictures have the names.
        higher_is_better: whether the metric is an accuracy, not a loss or an error rate.
        patience:         end after so many validations in a row without a better metric.
        checkpoint_path:  where to save, at each epoch's end and when interrupted; the best model
                          goes beside it (`best_path`).
        checkpoint_every: save also after so many updates.
        metrics_path:     JSON-lines file: one line an update, one a validation. A run that begins
                          at step 0 begins it anew; a resumed one cuts what it will write again.
        tensorboard:      folder of this run for TensorBoard's event files, which have the same
                          numbers; it needs `pip install 'dynbatch[tensorboard]'`.
        on_record:        on_record(record), called with each line of the metrics file as a dict,
                          for a tracker of one's own, with or without a file; see below.
        memory_limit:     the most that a mini-batch's graph may take, in bytes or as "2GiB"; see
                          `Graph.backward`.
        padded_bytes:     bytes that a mini-batch would take padded: `padding.padded_peak(...)`.
        memory_every:     updates between two for which the peak is planned beforehand, and worked
                          out padded, beside what is measured of each. It takes some milliseconds.
        watch:            updates between two that write a line about every parameter: norms of
                          weight, gradient and update, and others (`train.watch.Watched`). Such an
                          update copies all parameters; the others do not.
        advise_after:     updates after which it prints, once, what would make them faster: the
                          advice (`Graph.advice`) of the fastest of the last three mini-batches.
                          Three or more leave out those that compile and plan.
        random_state:     a generator that the loss function draws from, kept in checkpoints.
        extra:            what else to keep in checkpoints, such as the model's settings.
        save_frozen:      False leaves frozen parameters out of checkpoints, as adapters' beside a
                          pretrained model: to resume, load that model first.
        other_data:       what the run depends on beside its mini-batches, by name, such as
                          {"development set": dev}: digests of it are kept in checkpoints, and
                          `resume` refuses other data.
        precision:        what values are rounded to, "float32" (not at all) or "bfloat16", which
                          takes less memory: see `Graph`.
        make_graph:       the graph of each mini-batch; by default `Graph(device=...,
                          precision=...)`, where the optimizer's parameters are.
        communicator:     `parallel.connect()`: several processes train as one. Each differentiates
                          its shard of every mini-batch, and gradients are summed; see below.
        shards:           shards(batch, size) -> the places of each process's examples in a
                          mini-batch; by default shards have about as many tokens (or examples).
                          `parallel.Cost.cut(lengths)` cuts by a measured cost, which checkpoints
                          hold and `resume` compares.
        show_progress:    a progress bar, with the time left of the whole run.
        resume_hint:      what to tell someone who interrupted the run.

    **Exact resumption.** A checkpoint is a whole moment between two updates: parameters, optimizer,
    schedule, random states, position in the epoch. Since the batches of an epoch depend on its
    number alone, a run that was killed and resumed equals one that never was, bit for bit, on one
    machine, with as many threads and for equal settings.

    **Ctrl-C, SIGTERM, SIGHUP** end the run after the update, or the validation, that is being made;
    a second one ends it at once. They save the moment after the last whole update, say how to
    resume, and go on as `KeyboardInterrupt` and `SystemExit`, with which Python ends with status
    128 + the signal's number (130, 143, 129) if nobody catches it. SIGTERM and SIGHUP are left
    alone where the program handles or ignores them, and outside the main thread.

    **One run at a time.** While `fit` runs, no other process or thread can train with the same
    `checkpoint_path`; see `train.locked`.

    **on_record** is called on rank 0 when the moment that a record tells of is complete: after the
    update, or after the validation and its checkpoints. Each line of the metrics file comes once,
    in its order, with None for numbers that are not finite: {"step", "epoch", "loss", ...} of an
    update, {"step", "parameters"} of `watch`, {"step", "epoch", "metric", "is_best"} of a
    validation. What it raises ends `fit`; the update counts, its line is written, and `fit` called
    again goes on after it. A resumed run repeats the steps since its checkpoint, as it trains them.

    **Several processes** make the updates that one would make of the same mini-batches, up to the
    rounding of sums. All of them run this program; a shard may be empty. Means are over the tokens
    or sentences of all ranks, dropout does not depend on their number, and rank 0 alone writes
    files and shows progress. `validate` runs on all of them (`parallel.spread` shares its work
    out), and what rank 0 gets decides. A signal on one ends all after the same update. A run may go
    on with another number of processes.

    **On a GPU** nothing waits for a mini-batch before the next one has been started: its loss and
    norm are read, written down, and counted in `step`, one update later.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.step = 0
        self.epoch = 0
        self.position = 0
        self.stopping = EarlyStopping(self.patience, self.higher_is_better)
        is_first = self.ranks.is_first
        places = (self.metrics_path, self.tensorboard, self.on_record)
        self._records = RunRecords(*(places if is_first else (None, None)))
        self._advisor = Advisor(self.advise_after if is_first else None)
        self._unread: Update | None = None
        self._is_first = True
        self._last: Record = {}
        self._checkpoints = SavedRun(self)
        self._num_batches = 0
        self._marked = self.moment()

    def fit(self, num_epochs: int, overwrite: bool = False) -> TrainingResult:
        """Train until `num_epochs` epochs are done in all, or until validation says stop.

        The model is left in evaluation mode: what is asked of it next has no dropout.

        Args:
            overwrite: begin a new run though `checkpoint_path` has one, which is written over.

        Raises:
            ArgumentError:     `num_epochs` is not an integer >= 0.
            NumericError:      the loss or a gradient is NaN or infinite. The parameters are those
                               of the update before, and no checkpoint was written since.
            CheckpointError:   before the first mini-batch: `checkpoint_path` has a run that this
                               trainer neither began nor resumed, another writes there now, or
                               nothing can be written; or a checkpoint cannot be written later, and
                               the one before is whole.
            DataError:         the metrics file is damaged or cannot be written.
            ParallelError:     another process failed or ended, or has another model or data.
            KeyboardInterrupt: after saving; after SIGTERM or SIGHUP it is SystemExit.
        """
        size("Trainer.fit", "num_epochs", num_epochs, 0)
        switch("Trainer.fit", "overwrite", overwrite)
        ranks = self.ranks
        path = self.checkpoint_path if ranks.is_first else None
        with terminable(), ranks.noting_interrupts(), locked(path):
            if not overwrite and ranks.is_first:
                self._checkpoints.require_unused()
            self._settle()
            if ranks.is_first:
                self._checkpoints.begin()
            ranks.begin(self.model, self.random_state, self._deciding)
            self._marked = self.moment()
            self._records.keep_before(self.step, self.epoch)
            is_shown = self.show_progress and ranks.is_first
            if is_shown:
                tell_backend(next(self.optimizer.named_parameters())[1])
            try:
                with closing(Progress(num_epochs, is_shown)) as progress:
                    while self.epoch < num_epochs and not self.stopping.is_over:
                        self._run_epoch(progress)
                ranks.wait()  # for what rank 0 writes
            except (KeyboardInterrupt, Terminated):
                if ranks.agree:
                    self._save_interrupted()
                raise
            finally:
                self.model.eval()
                self._records.close()
        best, over = self.stopping.best, self.stopping.is_over
        return TrainingResult(self.step, self.epoch, best, self.stopping.best_step, over)

    def resume(
        self, path: str | os.PathLike[str] | None = None, data_changed: bool = False
    ) -> bool:
        """Go on from `path`, by default `checkpoint_path`; False if there is no such file yet.

        The mini-batches must be those that the run was begun with: `SentenceBatches` and
        `TokenBatches` keep a digest of their examples in the checkpoint, others their number.

        Parameters, the optimizer's and the schedule's rates and random states are the checkpoint's;
        settings such as `clip_norm`, or what the loss computes, are this trainer's, and not
        compared. What graphs round values and factors of products to is compared.

        Args:
            data_changed: go on with other ones. The epoch that was running begins anew with them;
                          updates made, optimizer and schedule go on.

        Raises:
            CheckpointError: the file is damaged, or of another model, optimizer, schedule, data or
                precision, or of a run with a schedule, average or `random_state` where this one has
                none; everything is as it was.
            ParallelError: a process does not see the file.
        """
        asked = self.checkpoint_path if path is None else path
        there = asked is not None and Path(asked).exists()
        self.ranks.require_same(
            {f"the checkpoint {asked}": "there" if there else "not there"},
            "all processes read the checkpoint", "give a folder that all of them see",
        )  # fmt: skip
        if asked is None or (path is None and not there):
            return False
        info, saved = self._checkpoints.load(asked, data_changed)
        self._unread = None
        self.step, self.epoch = info.step, info.epoch
        self.position = 0 if data_changed else info.position
        self.stopping.load_state_dict(saved["stopping"])
        return True

    # One epoch ------------------------------------------------------------------------------------

    def _run_epoch(self, progress: Progress) -> None:
        batches = self.batches.epoch(self.epoch)
        self._num_batches = length_hint(batches, 0)
        self.model.train()
        progress.begin_epoch(self.epoch, self.position, self._num_batches)
        with started(batches, self.position) as rest:
            while group := self._next(rest):
                self._update(group)
                progress.advance(sum(map(len, group)), self._last, len(group))
                del group  # before the next ones are read, which may take as much memory
        self._end_epoch()
        self.ranks.raise_interrupt()

    def _next(self, batches: Iterator[Sequence[Example]]) -> list[Sequence[Example]]:
        """The mini-batches of the next update; none at the end."""
        with self._advisor.reading():
            return list(islice(batches, self.accumulate))

    def _update(self, batches: Sequence[Sequence[Example]]) -> None:
        """Make one update, completely or not at all."""
        try:
            step = self.step + (1 if self._unread is None else 2)
            update = differentiate(self, batches, step, self.epoch, self._advisor)
            if not update.is_on_device:
                update.read()
        except NumericError as error:
            self._settle()  # on a GPU it may be the update before that failed
            failed = self._failed(error)
            self._records.tell()
            raise failed from error
        self._settle()
        if self._is_first:
            if self.ranks.is_first:
                warn_of_unoptimized(self.model, self.optimizer)
            if self._buffers:
                self.ranks.require_same_parameters(self.model)
            self._is_first = False
        with deferred_interrupt():
            update.apply(self)
            self._unread = update
            is_saved = self.checkpoint_every and update.record["step"] % self.checkpoint_every == 0
            if is_saved or not update.is_on_device:
                self._settle()
            if is_saved:
                self.save()
        self._advisor.updated()
        self._records.tell()
        self.ranks.raise_interrupt()

    def _settle(self) -> None:
        """Count the last update and write it down, now that its numbers are read.

        Raises:
            NumericError: they are not finite; the update was left out, and nothing remains of it.
        """
        update = self._unread
        if update is None:
            return
        try:
            update.read()
        except NumericError as error:
            self._unread = None
            if self.average is not None:
                self.average.num_updates -= 1
            raise self._failed(error) from error
        with deferred_interrupt():
            self._unread = None
            if self.schedule is not None and not self.schedule.needs_metric:
                self.schedule.step()
            self.step += 1
            self.position += update.num_batches
            self._marked = update.moment
            self._last = update.record
            self._records.write(*update.records())

    def _end_epoch(self) -> None:
        """Validate, note the result, and save."""
        self._settle()
        self.ranks.require_same_parameters(self.model)
        metric, measures = None, Record()
        if self.validate is not None:
            self.model.eval()
            with self.averaged():
                measures = self.ranks.first(validated(self.validate(self.model)))
            metric = measures["metric"]
        with deferred_interrupt():
            is_best = metric is not None and self.stopping.note(metric, self.step)
            if metric is not None:
                record = {"step": self.step, "epoch": self.epoch, **measures, "is_best": is_best}
                self._records.write(record)
                if self.schedule is not None and self.schedule.needs_metric:
                    self.schedule.step(metric)
            self.epoch += 1
            self.position = 0
            self._marked = self.moment()
            if is_best:
                with self.averaged():
                    self._save(self.best_path)
            self.save()
        self._records.tell()

    # Checkpoints ----------------------------------------------------------------------------------

    def save(self) -> None:
        """Save the present moment to `checkpoint_path`, if there is one.

        Raises:
            CheckpointError: it cannot be written; the checkpoint before is whole.
            NumericError:    the last update, on a GPU, had a loss or gradient that is not finite.
        """
        self._settle()
        self._save(self.checkpoint_path)

    def _save(self, path: str | os.PathLike[str] | None) -> None:
        saved = {"stopping": self.stopping.state_dict(), "num_batches": self._num_batches}
        self._checkpoints.save(path, self.step, self.epoch, self.position, saved)

    def _deciding(self) -> dict[str, object]:
        at = {"step": self.step, "epoch": self.epoch, "position": self.position}
        stopping = {"early stopping": self.stopping.state_dict()}
        return {**at, **stopping, **self.deciding(), **self._checkpoints.data()}

    def _save_interrupted(self) -> None:
        with deferred_interrupt():
            self._settle()
            self._marked.restore(self.random_state)
            self.optimizer.zero_grad()
            self.save()
            said = f"saved {self._checkpoints.last}.\nTo go on: {self.resume_hint}"
            said = NOT_SAVED if self.checkpoint_path is None else said
            if self.ranks.is_first:
                tell(f"Interrupted in epoch {self.epoch + 1} after step {self.step}: {said}")
        self._records.tell()

    def _failed(self, error: NumericError) -> NumericError:
        """Undo what the update did before its step, and return the error to raise."""
        self.optimizer.zero_grad()
        self._marked.restore_buffers()
        failed = NumericError(
            f"step {self.step + 1} (epoch {self.epoch + 1}, mini-batch {self.position + 1}): "
            f"{error}\n  last good checkpoint: {self._checkpoints.last or 'none was saved'}; "
            "nothing was saved over it."
        )
        return self.ranks.on_all(failed)
