"""The page of the family: each feature has a line of ours, and the page runs every such line."""

import re
from pathlib import Path

import pytest

from docs.blocks import blocks_of

PAGE = (Path(__file__).parents[2] / "docs" / "family.md").read_text("utf-8")
CODE = re.compile(r"`([^`]+)`")

# Of DyNet's dynet/expr.h and python/_dynet.pyx, commit 22b44958: expressions and functions,
# builders, trainers, initial values and inputs that can be set.
DYNET = """
    AdadeltaTrainer AdagradTrainer AdamTrainer AmsgradTrainer BiRNNBuilder
    ClassFactoredSoftmaxBuilder CompactVanillaLSTMBuilder ConstInitializer CoupledLSTMBuilder
    CyclicalSGDTrainer FastLSTMBuilder FloatValue FloatVectorValue FromFileInitializer GRUBuilder
    GlorotInitializer IdentityInitializer MomentumSGDTrainer NormalInitializer NumpyInitializer
    RMSPropTrainer RNNState SaxeInitializer SimpleRNNBuilder SimpleSGDTrainer SparseLSTMBuilder
    StackedRNNState StandardSoftmaxBuilder UniformInitializer UnsignedValue UnsignedVectorValue
    VanillaLSTMBuilder abs acos acosh affine_transform argmax asin asinh atan atanh
    available_devices average average_cols binary_log_loss block_dropout bmax bmin cdiv ceil
    cg_checkpoint cg_revert circ_conv circ_corr cmult colwise_add concatenate concatenate_cols
    concatenate_to_batch const_lookup const_parameter constant constrained_softmax contract3d_1d
    contract3d_1d_1d contract3d_1d_1d_bias contract3d_1d_bias conv2d conv2d_bias cos cosh cube
    cumsum dot_product dropout dropout_batch dropout_dim dump_cg elu emax erf esum exp
    filter1d_narrow flip_gradient floor fold_rows forward get_device_info hinge hinge_batch
    hinge_dim huber_distance init init_from_params input inputMatrix inputTensor inputVector
    inverse kmax_pooling kmh_ngram l1_distance l2_norm layer_norm lgamma load load_generator log
    log_sigmoid log_softmax logdet logistic logsumexp logsumexp_dim lookup lookup_batch matInput
    max max_dim maxpooling2d mean_batches mean_dim mean_elems min min_dim moment_batches
    moment_dim moment_elems nobackprop noise npvalues one_hot ones pairwise_rank_loss parameter
    pick pick_batch pick_batch_elem pick_batch_elems pick_range pickneglogsoftmax
    pickneglogsoftmax_batch pickrange poisson_loss pow print_text_graphviz random_bernoulli
    random_gumbel random_normal random_uniform rectify renew_cg reset_random_seed reshape round
    save scalarInput scale_gradient select_cols select_rows selu silu sin sinh softmax softsign
    sparse_inputTensor sparsemax sparsemax_loss sqrt square squared_distance squared_norm
    std_batches std_dim std_elems strided_select sum sum_batches sum_cols sum_dim sum_elems
    sum_rows tan tanh to_device trace_of_product transpose values vanilla_lstm_c
    vanilla_lstm_gates vanilla_lstm_gates_concat vanilla_lstm_gates_dropout
    vanilla_lstm_gates_dropout_concat vanilla_lstm_h vecInput weight_norm zeroes zeros
""".split()


def rows_of(text):
    """The rows of the page's tables, without their heads: cells of a row."""
    rows, lines = [], text.splitlines()
    for number, line in enumerate(lines):
        is_head = number + 1 < len(lines) and lines[number + 1].startswith("|---")
        if line.startswith("| ") and not is_head:
            rows.append([cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)])
    return [cells[1:-1] for cells in rows]


def executed(text):
    """The code of the page's blocks, in single spaces."""
    return " ".join(" ".join(block.code for block in blocks_of(text)).split())


def without_a_line(text):
    """Rows of which nothing of ours runs, or of which a line does not stand in a block."""
    code = executed(text)
    return [
        (cells[0], line)
        for cells in rows_of(text)
        for line in CODE.findall(cells[-1]) or ["nothing"]
        if " ".join(line.split()) not in code
    ]


def test_every_row_has_lines_that_the_page_runs():
    assert len(rows_of(PAGE)) > 180
    assert without_a_line(PAGE) == []


def test_every_table_has_two_columns():
    assert {len(cells) for cells in rows_of(PAGE)} == {2}


@pytest.mark.parametrize(
    ("cell", "left"),
    [("`F.exp(x)`", []), ("a sentence", ["nothing"]), ("`F.exp(x)`, `F.log(x)`", ["F.log(x)"])],
)
def test_a_row_without_a_line_is_found(cell, left):
    page = f"| theirs | here |\n|---|---|\n| exp | {cell} |\n\n```python\nF.exp(x)\n```\n"
    assert without_a_line(page) == [("exp", line) for line in left]


def sections(text, *heads):
    """The text below these heads, each up to the next head of its rank."""
    return "".join([text.partition(f"\n## {head}\n")[2].partition("\n## ")[0] for head in heads])


def test_each_name_of_dynet_has_a_line_or_is_said_not_to_be_here():
    heads = ("DyNet: expressions", "DyNet: networks and training", "What is not here")
    said = set(re.findall(r"\w+", sections(PAGE, *heads)))
    assert len(DYNET) == 200 and [name for name in DYNET if name not in said] == []
