from dynbatch.kernels.unary import activations, arithmetic


def test_a_text_argument_names_a_form():
    gelu, clip = activations.gelu, arithmetic.clip
    assert gelu.chosen(["none"]) == (gelu, ())
    assert gelu.chosen(["tanh"]) == (gelu.forms["tanh"], ())
    assert clip.chosen([0.0, 1.0]) == (clip, (0.0, 1.0))
