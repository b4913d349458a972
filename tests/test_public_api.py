"""The public surface, name by name: a change of it is a change of this file."""

import inspect
import pkgutil
import tomllib
from pathlib import Path

import pytest

import dynbatch as db
from dynbatch.nodes.unary import activations

PUBLIC = {
    "dynbatch": """
        Cell CudaKernel DynbatchError Engine GenerationConfig Graph MemoryUse Node NodeType
        Operation Parameter Policy Ragged Retain RowSparse backends block cell drive errors generate
        grad hvp initial_state log_prob memory models node_types nodes num_threads optim padding
        parallel pictures predict scan seed set_batch_invariant set_gc_threshold set_num_threads
        stack testing total train zeros
    """,
    "dynbatch.nodes": """
        abs acos acosh add additive_attention affine alibi argmax asin asinh atan atanh attention
        avg_pool2d binary_cross_entropy_with_logits ceil chunk clamp clip concat constant conv1d
        conv2d conv_transpose2d cos cosh cosine_similarity crf cross_entropy ctc_loss cumsum detach
        divide dot dropout equal erf exp expand feature_bias floor gated_delta_rule gather_rows
        gaussian_nll_loss geglu general_attention glu greater greater_equal hinge_embedding_loss
        huber_loss input kl_div kmax_pool l1_loss layer_norm less less_equal linear log log_softmax
        logsumexp lookup matmul matvec max max_pool max_pool2d maximum mean mean_pool min minimum
        mse_loss multi_margin_loss multiply negative nll_loss normalize not_equal outer parameter
        permute pick pointer_loss poisson_nll_loss positions pow reglu relative_bias repeat reshape
        reverse rms_norm rotary round segment_mean segment_sum semi_crf semi_viterbi sign sin sinh
        sinusoidal slice soft_margin_loss softmax sparsemax split sqrt squeeze stack std subtract
        sum swiglu t5_bias tan topk transpose unsqueeze var vecmat viterbi where windows
    """,
    "dynbatch.parallel": """
        Communicator Cost PipelineResult balanced connect pipeline spread sum_gradients
    """,
    "dynbatch.pictures": """
        Picture generation memory padding sentence timeline training
    """,
    "dynbatch.testing": """
        FailingMemory NanPool Probe check_batching check_device check_gradient check_limits
        check_policies check_sentences in_float64 load_graph replay
    """,
    "dynbatch.text": """
        ByteTokenizer CharacterTokenizer ChatTemplate ErrorRates HuggingFaceTokenizer LabelledText
        LabelledTree ParallelText ParsedSentence PretrainedVectors SentencePieceTokenizer
        TaggedSentence Vocabulary WordPiece copy_tokenizer edit_distance error_rates
        load_tokenizer read_conllu read_documents read_json_lines read_labelled read_lines
        read_pairs read_tagged read_trees read_vectors translation_scores
    """,
    "dynbatch.memory": """
        Adaptor Arena Buddy Buffer DeviceMemory Event GivenMemory HostMemory Interval Limit Logging
        MemoryStatistics Pool Replay Resource Retry SizeClasses Statistics compare_padding
        default_pool live_peak plan_offsets read_log replay
    """,
}


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_are_these(module):
    found = pkgutil.resolve_name(module)
    # An activation is public by its definition, and each has a case of its name.
    names = PUBLIC[module].split() + activations.__all__ * (module == "dynbatch.nodes")
    assert sorted(found.__all__) == sorted(names)
    for name in found.__all__:
        assert getattr(found, name) is not None


@pytest.mark.parametrize(
    "module",
    [*PUBLIC, "dynbatch.models", "dynbatch.models.pretrained", "dynbatch.optim", "dynbatch.train"],
)
def test_every_public_name_has_a_docstring(module):
    found = pkgutil.resolve_name(module)
    for name in found.__all__:
        one = getattr(found, name)
        if inspect.isclass(one) or inspect.isroutine(one) or inspect.ismodule(one):
            assert inspect.getdoc(one), f"{module}.{name}"


def test_what_a_subclass_of_node_overrides_has_a_docstring():
    for name, member in vars(db.Node).items():
        if inspect.isroutine(member) and not name.startswith("_"):
            assert inspect.getdoc(member), name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'magic'"):
        _ = db.magic


def test_the_version_stands_in_one_place():
    written = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert "version" not in written["project"] and written["project"]["dynamic"] == ["version"]
    assert written["tool"]["hatch"]["version"] == {"path": "dynbatch/__init__.py"}
