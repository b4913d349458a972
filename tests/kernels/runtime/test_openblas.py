from dynbatch.kernels.runtime import openblas


def test_the_kernels_of_openblas_have_a_name():
    assert openblas.core_name()
