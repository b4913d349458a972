"""Layers of images: PyTorch's names, first values, checkpoints and results."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import models, optim, train
from dynbatch import nodes as F
from dynbatch.commands.main import main
from dynbatch.errors import ArgumentError
from tests.torch_parity import import_torch


def network():
    return models.Sequential(
        models.Conv2d(3, 4, 3, padding=1, rng=0), F.relu,
        models.MaxPool2d(2, padding=(0, 1), dilation=(1, 2)),
        models.Conv2d(4, 4, (5, 3), padding="same", groups=4),
        models.Conv2d(4, 5, (2, 3), stride=(1, 2), dilation=(2, 1), bias=False, rng=1),
        models.AvgPool2d(2, 1, 1), models.Flatten(), models.Linear(5 * 3 * 4, 6, rng=2),
    )  # fmt: skip


def torch_network(torch):
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2, padding=(0, 1), dilation=(1, 2)),
        nn.Conv2d(4, 4, (5, 3), padding="same", groups=4),
        nn.Conv2d(4, 5, (2, 3), stride=(1, 2), dilation=(2, 1), bias=False),
        nn.AvgPool2d(2, 1, 1), nn.Flatten(), nn.Linear(5 * 3 * 4, 6),
    )  # fmt: skip


def images_of(count, size=(9, 14, 3)):
    return np.random.default_rng(3).normal(size=(count, *size)).astype(np.float32)


def test_a_network_loads_pytorchs_state_and_gives_its_numbers_and_steps():
    torch = import_torch()
    twin, net = torch_network(torch), network()
    net.load_state_dict(twin.state_dict())
    optimizer = optim.AdamW(net.parameters(), lr=0.01)
    theirs = torch.optim.AdamW(twin.parameters(), lr=0.01)
    images = images_of(4)
    for _ in range(3):
        with db.Graph() as graph:
            scores = [net(F.input(graph, x)) for x in images]
            found = np.array([y.value for y in scores])
            graph.backward(F.mean([F.cross_entropy(y, [k]) for k, y in enumerate(scores)]))
        norm = optim.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        theirs.zero_grad()
        y = twin(torch.tensor(images).permute(0, 3, 1, 2))
        torch.nn.functional.cross_entropy(y, torch.arange(4)).backward()
        assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5)))
        theirs.step()
        np.testing.assert_allclose(found, y.detach().numpy(), atol=1e-5)
        optimizer.zero_grad()
    for name, value in twin.state_dict().items():
        np.testing.assert_allclose(net.state_dict()[name], value.numpy(), atol=1e-5)


def test_names_and_first_values_are_pytorchs():
    torch = import_torch()
    shapes = {name: tuple(p.shape) for name, p in torch_network(torch).named_parameters()}
    assert {name: p.shape for name, p in network().named_parameters()} == shapes
    for ours, theirs in (
        (models.Conv2d(6, 50, (3, 2), rng=0), torch.nn.Conv2d(6, 50, (3, 2))),
        (models.Conv1d(6, 50, 4, rng=0), torch.nn.Conv1d(6, 50, 4)),
        (models.Conv2d(6, 90, 3, groups=3, rng=0), torch.nn.Conv2d(6, 90, 3, groups=3)),
        (models.Conv1d(6, 90, 4, groups=2, rng=0), torch.nn.Conv1d(6, 90, 4, groups=2)),
        (models.ConvTranspose2d(5, 60, 3, rng=0), torch.nn.ConvTranspose2d(5, 60, 3)),
        (
            models.ConvTranspose2d(6, 90, (3, 2), groups=3, rng=0),
            torch.nn.ConvTranspose2d(6, 90, (3, 2), groups=3),
        ),
    ):
        for name, parameter in ours.named_parameters():
            twin = theirs.get_parameter(name).detach().numpy()
            assert parameter.shape == twin.shape
            bound = 1 / np.sqrt(theirs.weight[0].numel())
            for values in (parameter.value, twin):
                assert 0.85 * bound < abs(values).max() <= bound + 1e-7


def test_a_layer_of_sentences_gives_pytorchs_numbers():
    torch = import_torch()
    for how in ({"stride": 2, "padding": 1, "dilation": 2}, {"padding": "same", "dilation": 3}):
        twin, layer = torch.nn.Conv1d(4, 3, 3, **how), models.Conv1d(4, 3, 3, **how)
        layer.load_state_dict(twin.state_dict())
        x = np.random.default_rng(0).normal(size=(11, 4)).astype(np.float32)
        with db.Graph() as graph:
            y = layer(F.input(graph, x)).value
        np.testing.assert_allclose(y, twin(torch.tensor(x).T[None])[0].T.detach(), atol=1e-6)


def test_an_image_made_larger_is_pytorchs():
    torch = import_torch()
    how = {
        "stride": (2, 3),
        "padding": 1,
        "output_padding": (1, 0),
        "groups": 2,
        "dilation": (1, 2),
    }
    for bias in (True, False):
        twin = torch.nn.ConvTranspose2d(4, 6, (3, 2), bias=bias, **how)
        layer = models.ConvTranspose2d(4, 6, (3, 2), bias=bias, **how)
        layer.load_state_dict(twin.state_dict())
        for x in (images_of(1, (3, 5, 4))[0], images_of(1, (1, 2, 4))[0]):
            with db.Graph() as graph:
                y = layer(F.input(graph, x)).value
            expected = twin(torch.tensor(x).permute(2, 0, 1)[None])[0].permute(1, 2, 0)
            np.testing.assert_allclose(y, expected.detach(), atol=1e-6)


def test_weights_go_through_checkpoints_and_convert(tmp_path):
    torch = import_torch()
    twin = torch_network(torch)
    torch.save(twin.state_dict(), tmp_path / "twin.pt")
    main(["convert", str(tmp_path / "twin.pt"), str(tmp_path / "twin.safetensors")])
    main(["convert", str(tmp_path / "twin.safetensors"), str(tmp_path / "again.pt")])
    again = torch.load(tmp_path / "again.pt")
    net = network()
    net.load_state_dict(again)
    train.save_checkpoint(tmp_path / "ours.safetensors", net)
    loaded = network()
    train.load_checkpoint(tmp_path / "ours.safetensors", loaded)
    for name, value in twin.state_dict().items():
        assert np.array_equal(loaded.state_dict()[name], value.numpy())


def test_flattening_is_in_pytorchs_order():
    x = images_of(1)[0]
    with db.Graph() as graph:
        node = F.input(graph, x)
        assert np.array_equal(models.Flatten()(node).value, x.transpose(2, 0, 1).reshape(-1))
        assert np.array_equal(models.Flatten()(node[0]).value, x[0].T.reshape(-1))
        assert np.array_equal(models.Flatten()(node[0][0]).value, x[0, 0])


def test_launches_do_not_grow_with_the_images():
    def launches(count):
        net = network()
        with db.Graph() as graph:
            losses = [F.sum(net(F.input(graph, x))) for x in images_of(count)]
            graph.backward(F.sum(losses))
            return graph.statistics.launches

    assert launches(2) == launches(20)


def test_layers_are_found_by_place():
    net = network()
    assert len(net) == 8
    assert net[1] is F.relu
    assert isinstance(net[-1], models.Linear)
    assert [type(layer).__name__ for _, layer in net.children()][:2] == ["Conv2d", "MaxPool2d"]
    assert all(not layer.training for _, layer in net.eval().children())


def test_arguments_that_do_not_fit_are_refused_when_the_layer_is_made():
    with pytest.raises(ArgumentError, match="Conv2d: stride is 0"):
        models.Conv2d(3, 4, 3, stride=0)
    with pytest.raises(ArgumentError, match=r"Conv2d: kernel_size is \(3, 3, 3\)"):
        models.Conv2d(3, 4, (3, 3, 3))
    with pytest.raises(ArgumentError, match="Conv1d: padding is -1"):
        models.Conv1d(3, 4, 3, padding=-1)
    with pytest.raises(ArgumentError, match="Conv2d: groups is 4 for 6 and 8 channels") as raised:
        models.Conv2d(6, 8, 3, groups=4)
    assert "groups=2" in str(raised.value)
    with pytest.raises(ArgumentError, match="Conv2d: padding is 'sam'"):
        models.Conv2d(3, 4, 3, padding="sam")
    with pytest.raises(ArgumentError, match="Conv1d: padding='same' with stride"):
        models.Conv1d(3, 4, 3, stride=2, padding="same")
    with pytest.raises(ArgumentError, match="in_channels"):
        models.Conv2d(0, 4, 3)
    with pytest.raises(ArgumentError, match=r"MaxPool2d: kernel_size is 2\.5"):
        models.MaxPool2d(2.5)
    with pytest.raises(ArgumentError, match="ConvTranspose2d: output_padding 1 with stride"):
        models.ConvTranspose2d(3, 4, 3, output_padding=1)
    with pytest.raises(ArgumentError, match="ConvTranspose2d: groups is 2 for 4 and 3 channels"):
        models.ConvTranspose2d(4, 3, 3, groups=2)
    with pytest.raises(ArgumentError, match="MaxPool2d: dilation is 0"):
        models.MaxPool2d(2, dilation=0)
    with pytest.raises(ArgumentError, match="layer 1 is"):
        models.Sequential(F.relu, 3)
    with pytest.raises(ArgumentError, match="layer 0 is"):
        models.Sequential(models.Flatten)
