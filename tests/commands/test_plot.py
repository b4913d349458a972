from dynbatch.commands.main import main
from tests.pictures.test_training import write_run


def test_a_run_is_drawn_beside_its_metrics(tmp_path, capsys):
    run = write_run(tmp_path / "poems", 20)
    assert main(["plot", str(run)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("poems: 20 updates in 2 epochs; loss 4 at first")
    assert said.endswith(f"drawn in {run / 'training.svg'}\n")
    assert (run / "training.svg").read_text().startswith("<svg")


def test_several_runs_are_drawn_where_it_is_said(tmp_path, capsys):
    runs = [write_run(tmp_path / name, 20) for name in ("a", "b")]
    path = tmp_path / "both.html"
    assert main(["plot", *map(str, runs), "-o", str(path)]) == 0
    assert "2 training runs" in path.read_text()


def test_a_folder_that_is_not_a_run_is_one_error(tmp_path, capsys):
    assert main(["plot", str(tmp_path)]) == 1
    assert "metrics.jsonl: there is no such file" in capsys.readouterr().err
