"""Names of PyTorch and NumPy that are not here, each with what to write."""

from __future__ import annotations

from collections.abc import Mapping

from dynbatch.errors import MissingAttributeError

OTHER_NAMES = {
    "adaptive_avg_pool2d": "F.mean(x, dim=(0, 1)), over all pixels of an image (H, W, C)",
    "amax": "F.max(x, dim)",
    "amin": "F.min(x, dim)",
    "avg_pool1d": "F.mean_pool(x, size), over tokens",
    "arange": "F.input(graph, np.arange(n))",
    "arccos": "F.acos(x)",
    "arccosh": "F.acosh(x)",
    "arcsin": "F.asin(x)",
    "arcsinh": "F.asinh(x)",
    "arctan": "F.atan(x)",
    "arctanh": "F.atanh(x)",
    "argmin": "F.argmax(-x, dim)",
    "as_tensor": "F.input(graph, array)",
    "binary_cross_entropy": "F.binary_cross_entropy_with_logits(x, y), before the sigmoid",
    "bmm": "F.matmul(a, b) of each sentence; sentences are batched by themselves",
    "cat": "F.concat(inputs, dim), whose dim is -1 unless it is given",
    "concatenate": "F.concat(inputs, dim)",
    "diagonal": "F.sum(F.where(np.eye(len(x), dtype=bool), x, 0), dim=-1)",
    "div": "F.divide(a, b), or a / b",
    "einsum": "F.matmul(a, b), x.T, products and F.sum of one sentence's matrices",
    "embedding": "F.lookup(graph, table, ids)",
    "eq": "F.equal(a, b)",
    "erfc": "1.0 - F.erf(x)",
    "flatten": "x.flatten()",
    "flip": "F.reverse(x)",
    "full": "F.constant(graph, number, shape)",
    "gather": "F.gather_rows(x, ids) takes whole rows, x[token, feature] one number",
    "ge": "F.greater_equal(a, b), or a >= b",
    "gelu_new": 'F.gelu(x, approximate="tanh")',
    "gt": "F.greater(a, b), or a > b",
    "index_select": "F.gather_rows(x, ids), or x[ids]",
    "le": "F.less_equal(a, b), or a <= b",
    "lt": "F.less(a, b), or a < b",
    "masked_fill": "F.where(mask, value, x)",
    "max_pool1d": "F.max_pool(x, size), over tokens",
    "mm": "F.matmul(a, b)",
    "mul": "F.multiply(a, b), or a * b",
    "mv": "F.matmul(a, b)",
    "narrow": "F.slice(x, start, stop, dim)",
    "ne": "F.not_equal(a, b)",
    "neg": "F.negative(x), or -x",
    "norm": "F.sqrt(F.sum(x * x))",
    "ones": "F.constant(graph, 1.0, shape)",
    "prod": "F.exp(F.sum(F.log(x))) of positive numbers",
    "quick_gelu": "x * F.sigmoid(1.702 * x)",
    "scaled_dot_product_attention": "F.attention(query, keys, values)",
    "segment_reduce": "F.segment_sum(x, lengths) and F.segment_mean(x, lengths)",
    "square": "x * x",
    "sub": "F.subtract(a, b), or a - b",
    "swish": "F.silu(x)",
    "t": "F.transpose(x), or x.T",
    "tensor": "F.input(graph, array)",
    "unbind": "[x[t] for t in range(len(x))]",
    "unfold": "F.windows(x, size), over tokens",
    "view": "F.reshape(x, shape)",
    "vstack": "F.stack(vectors), F.concat(matrices, dim=0)",
    "zeros": "F.constant(graph, 0.0, shape)",
    "zeros_like": "F.constant(graph, 0.0, x.shape)",
    "ones_like": "F.constant(graph, 1.0, x.shape)",
}


OF_MODELS = {
    "AdaptiveAvgPool2d": "F.mean(x, dim=(0, 1)), over all pixels of an image (H, W, C)",
    "AvgPool1d": "F.mean_pool(x, size), over tokens",
    "BatchNorm1d": "models.BatchNorm(dim), called on all sentences: norm(graph, xs)",
    "BatchNorm2d": "models.BatchNorm(channels), called on all images: norm(graph, xs)",
    "CrossEntropyLoss": "F.cross_entropy(scores, targets)",
    "GRUCell": "a function of one step with @db.cell, called on nodes",
    "LSTMCell": "a function of one step with @db.cell, called on nodes",
    "LazyConv1d": "models.Conv1d(None, out_channels, kernel_size)",
    "LazyConv2d": "models.Conv2d(None, out_channels, kernel_size)",
    "LazyLinear": "models.Linear(None, out_features)",
    "LanguageModel": "models.GPT, or a module of yours with logits(graph, ids)",
    "MaxPool1d": "F.max_pool(x, size), over tokens",
    "ModuleDict": "a dict as attribute: the modules in it are found",
    "ModuleList": "a list as attribute: the modules in it are found",
    "MultiheadAttention": "models.MultiHeadAttention(dim, heads)",
    "Parameter": "db.Parameter(array)",
    "ParameterDict": "a dict as attribute: the parameters in it are found",
    "ParameterList": "a list as attribute: the parameters in it are found",
    "RNN": "models.LSTM, models.GRU, or db.scan with a cell of your own",
    "ReLU": "F.relu; models.Sequential takes functions",
    "functional": "from dynbatch import nodes as F",
}

OF_OPTIM = {
    "ZeroRedundancyOptimizer": "optim.Adam(model).shard(communicator)",
    "lr_scheduler": "optim.Cosine, optim.InverseSqrt, optim.LinearWarmup, optim.Plateau",
}

OF_DYNBATCH = {
    "Module": "models.Module",
    "as_tensor": "F.input(graph, array)",
    "from_numpy": "F.input(graph, array)",
    "load": "train.load_checkpoint(path, model); dynbatch.tasks.load_task(folder) of a run",
    "load_task": "from dynbatch.tasks import load_task",
    "manual_seed": "db.seed(number)",
    "nn": "from dynbatch import models, nodes as F",
    "no_grad": "with db.Graph(grad=False) as graph:",
    "renew_cg": "with db.Graph() as graph:",
    "save": "train.save_checkpoint(path, model)",
    "tensor": "F.input(graph, array)",
}


def missing(
    name: str, owner: str = "F", module: str = "dynbatch.nodes",
    names: Mapping[str, str] = OTHER_NAMES,
) -> AttributeError:  # fmt: skip
    """The error for a name that a module lacks, which readers know as `owner`."""
    if name not in names:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    return MissingAttributeError.at_caller(f"{owner} has no {name!r}.\n  fix:  {names[name]}")
