"""The lab's networks are the published ones."""

import pytest
import torch
from torch import nn

from superadam_lab.tasks import models

PUBLISHED = [
    # He et al. as re-implemented for 32 × 32 images (3 × 3 stem), and for ImageNet
    (lambda: models.cifar_resnet(18, 10), 11_173_962),
    (lambda: models.cifar_resnet(18, 100), 11_220_132),
    (lambda: models.cifar_resnet(34, 10), 21_282_122),
    (lambda: models.imagenet_resnet(18), 11_689_512),
    (lambda: models.imagenet_resnet(34), 21_797_672),
    (lambda: models.vgg19_bn(10), 20_040_522),
    (lambda: models.vgg19_bn(100), 20_086_692),
    # Zaremba et al.'s medium LSTM ("20 M") on 10,000 words; the same on WikiText-2's
    (lambda: models.LSTM(10_000), 19_780_400),
    (lambda: models.LSTM(33_278), 50_065_078),
    # as the module's table says
    (lambda: models.Transformer(33_278), 13_828_478),
    (lambda: models.mlp(64, 128, 10, 0.2), 9_610),
    (lambda: models.small_cnn(10, 16), 7_514),
]


@pytest.mark.parametrize(("make", "count"), PUBLISHED)
def test_parameter_counts_are_the_published_ones(make, count):
    with torch.device("meta"):
        assert models.parameters(make()) == count


@pytest.mark.parametrize(("V", "d", "h", "layers"), [(33_278, 200, 200, 2), (50, 8, 12, 3)])
def test_parameter_count_of_the_transformer(V, d, h, layers):
    """Embedding, attention (4 matrices), feed-forward network, two LayerNorms per layer, decoder."""
    layer = 4 * (d * d + d) + (d * h + h) + (h * d + d) + 2 * 2 * d
    model = models.Transformer(V, d, 2, h, layers)
    assert models.parameters(model) == V * d + layers * layer + (d * V + V)


@pytest.mark.parametrize(
    ("model", "shape", "classes"),
    [
        (lambda: models.mlp(64, 16, 10, 0.5), (1, 8, 8), 10),
        (lambda: models.small_cnn(10, 4), (1, 8, 8), 10),
        (lambda: models.cifar_resnet(18, 7, width=4), (3, 32, 32), 7),
        (lambda: models.cifar_resnet(34, 7, width=4), (3, 32, 32), 7),
        (lambda: models.vgg19_bn(100, width=4), (3, 32, 32), 100),
        (lambda: models.imagenet_resnet(34, 5, width=4), (3, 64, 64), 5),
    ],
)
def test_image_models(model, shape, classes):
    """One logit per class and image; every parameter gets a finite, non-zero gradient."""
    net = model()
    out = net(torch.randn(6, *shape))
    assert out.shape == (6, classes)
    nn.functional.cross_entropy(out, torch.arange(6) % classes).backward()
    for name, p in net.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
    assert sum(p.grad.count_nonzero() for p in net.parameters()) > 0.5 * models.parameters(net)


@pytest.mark.parametrize(
    "make",
    [
        lambda: models.small_cnn(10, 4),
        lambda: models.cifar_resnet(18, 10, width=4),
        lambda: models.vgg19_bn(10, width=4),
    ],
)
def test_batchnorm(make):
    """In training an image's logits depend on the batch, and statistics move; in evaluation neither."""
    net = make()
    x = torch.randn(8, next(iter(net.parameters())).shape[1], 32, 32)
    counts = [b for n, b in net.named_buffers() if n.endswith("num_batches_tracked")]
    assert not torch.allclose(net(x)[:2], net(x[:2]))
    assert counts
    assert all(int(c) == 2 for c in counts)
    net.eval()
    torch.testing.assert_close(net(x)[:2], net(x[:2]), rtol=1e-4, atol=1e-5)
    assert all(int(c) == 2 for c in counts)


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (lambda: models.mlp(64, 32, 10, 0.5), torch.ones(4, 64)),
        (lambda: models.LSTM(30, 8), torch.arange(20).view(10, 2)),
        (lambda: models.Transformer(30, 8, 2, 8), torch.arange(20).view(10, 2)),
    ],
)
def test_dropout(make, x):
    """Random in training, repeated by the same generator state; none in evaluation."""
    net = make()

    def out():
        y = net(x)
        return y[0] if isinstance(y, tuple) else y

    state = torch.get_rng_state()
    first = out()
    assert not torch.equal(first, out())
    torch.set_rng_state(state)
    assert torch.equal(first, out())
    net.eval()
    assert torch.equal(out(), out())


@pytest.mark.parametrize("layers", [1, 2])
def test_lstm_carries_its_state(layers):
    """Two stretches with the state handed on are one stretch."""
    net = models.LSTM(30, 8, layers).eval().double()
    tokens = torch.randint(30, (10, 3))
    whole, (h, c) = net(tokens)
    first, state = net(tokens[:4])
    second, (h2, c2) = net(tokens[4:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close((h2, c2), (h, c))
    assert not torch.allclose(net(tokens[4:])[0], second)


def test_transformer_does_not_look_ahead():
    net = models.Transformer(30, 8, 2, 8).eval().double()
    tokens = torch.randint(30, (10, 3))
    changed = tokens.clone()
    changed[6:] = (changed[6:] + 1) % 30
    before, after = net(tokens), net(changed)
    torch.testing.assert_close(before[:6], after[:6])
    assert not torch.isclose(before[6:], after[6:]).all(dim=2).any()


def test_transformer_knows_the_order_and_its_layers_differ():
    net = models.Transformer(30, 8, 2, 8).eval()
    same = net(torch.full((5, 1), 3))
    assert not torch.allclose(same[0], same[4])
    assert not torch.equal(net.layers[0].linear1.weight, net.layers[1].linear1.weight)


def test_first_loss_of_the_language_models_is_that_of_a_uniform_guess():
    tokens = torch.randint(1000, (35, 20))
    for logits in (models.LSTM(1000, 64).eval()(tokens)[0], models.Transformer(1000, 64, 2, 64).eval()(tokens)):
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 0).flatten())
        assert abs(loss.item() - torch.tensor(1000.0).log().item()) < 0.3


def test_wrong_depth():
    with pytest.raises(ValueError, match=r"no ResNet-50 here: depth must be one of 18, 34"):
        models.cifar_resnet(50, 10)
