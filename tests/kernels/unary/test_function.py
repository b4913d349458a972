from dynbatch.kernels.unary.function import variant


def test_a_text_argument_names_a_variant():
    assert variant("gelu", ["none"]) == ("gelu", ())
    assert variant("gelu", ["tanh"]) == ("gelu_tanh", ())
    assert variant("clip", [0.0, 1.0]) == ("clip", (0.0, 1.0))
