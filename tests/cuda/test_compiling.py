"""One process compiles a module, and the others wait."""

import threading
import time

from dynbatch.kernels.cuda.runtime.launch import Kernels
from tests.cuda.compiling import one_compiles


def test_two_that_want_one_module_compile_one_after_the_other(cuda, tmp_path, monkeypatch):
    inside, most = [], []

    def compile_one(self, name):
        inside.append(name)
        most.append(len(inside))
        time.sleep(0.02)
        inside.pop()

    monkeypatch.setattr(Kernels, "compile", compile_one)

    def most_at_once(*names):
        most.clear()
        with one_compiles(tmp_path):
            threads = [
                threading.Thread(target=Kernels("float32", cuda).compile, args=(name,))
                for name in names
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return max(most)

    assert most_at_once("fill", "fill", "fill") == 1
    assert most_at_once("fill", "softmax_loss", "sparsemax") > 1  # other modules wait for nobody
    assert Kernels.compile is compile_one
