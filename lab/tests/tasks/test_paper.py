"""The paper's own tasks, at tiny scale on data of the same form."""

import pytest
import torch

from pairs import pairs
from superadam.zoo.presets import PRESETS
from superadam_lab import data, tasks
from superadam_lab.data import Images, Tokens
from superadam_lab.methods import by_name as methods
from superadam_lab.runs.folders import Config, Folder, rows
from superadam_lab.runs.training import Run

PUBLISHED = {
    "cifar10-resnet18": ("cifar10", 200, 128),
    "cifar100-vgg19": ("cifar100", 200, 128),
    "imagenet-resnet34": ("imagenet", 60, 256),
    "wikitext2-lstm": ("wikitext2-lstm", 40, 20),
    "wikitext2-transformer": ("wikitext2-transformer", 40, 20),
}


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory):
    """Three classes of images, in ImageNet's folders."""
    image = pytest.importorskip("PIL.Image")
    root = tmp_path_factory.mktemp("imagenet")
    for split, n in (("train", 12), ("val", 4)):
        for kind in range(3):
            folder = root / split / f"n{kind}"
            folder.mkdir(parents=True)
            for i in range(n):
                image.new("RGB", (40, 48), (80 * kind, 10 * i, 100)).save(folder / f"{i}.JPEG")
    return root


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    def cifar(root, classes):
        generator = torch.Generator().manual_seed(0)
        x = torch.randint(256, (200, 3, 32, 32), dtype=torch.uint8, generator=generator)
        y = torch.randint(classes, (200,), generator=generator)
        every = Images(x, y, (0.5,) * 3, (0.25,) * 3, tuple(map(str, range(classes))))
        return {"train": every.take(slice(100)), "test": every.take(slice(100, None))}

    def wikitext2(root):
        ids = torch.randint(50, (1200,), generator=torch.Generator().manual_seed(0))
        return {split: Tokens(ids, list(map(str, range(50)))) for split in ("train", "valid", "test")}

    monkeypatch.setattr(data, "cifar", cifar)
    monkeypatch.setattr(data, "wikitext2", wikitext2)


@pytest.mark.parametrize(("task", "method"), pairs(PUBLISHED, methods.PAPER, one_in=3))
def test_every_task_trains_with_every_optimizer_of_the_paper(task, method, tmp_path, jpegs):
    where = jpegs if task.startswith("imagenet") else tmp_path
    run = Run(Folder.new(tmp_path / "run", Config(task, method, "tiny", data_dir=str(where), epochs=1)))
    ended = run.train()
    first, last = (rows(run.folder.path)[i] for i in (0, -1))
    if ended == "diverged":  # learning rates of the paper are for its own scale
        assert last["train_loss"] is None
        return
    assert ended == "finished"
    assert last["train_loss"] != first["train_loss"]
    assert last["step"] == run.workload.length


@pytest.mark.parametrize("task", PUBLISHED)
def test_the_papers_scale_is_the_papers(task):
    preset, epochs, batch = PUBLISHED[task]
    found = tasks.find(task)
    sizes = found.sizes("paper")
    assert (sizes["epochs"], sizes["batch"]) == (epochs, batch)
    assert sizes.get("rows") is sizes.get("words") is None
    assert found.settings("paper") == PRESETS[preset]


@pytest.mark.parametrize("rows", [64, 1000])
def test_below_the_papers_scale_other_training_images_are_for_validation(rows):
    workload = tasks.TASKS["cifar10-resnet18"].build("", 0, width=4, rows=rows, measured=rows // 2, batch=32)
    images = {split: {tuple(x.flatten().tolist()) for x in workload.measured[split].x} for split in workload.splits}
    assert list(images) == ["train", "valid", "test"]
    assert not images["train"] & images["valid"]
    assert {len(x) for x in images.values()} == ({32} if rows == 64 else {66, 34, 100})  # of 100: two parts to one
    assert len(workload.source) == (64 if rows == 64 else 66)


def test_the_papers_scale_has_no_validation_images():
    assert tasks.TASKS["cifar10-resnet18"].build("", 0, width=4, rows=None, batch=32).splits == ("train", "test")


def test_below_the_papers_scale_rare_words_are_unknown(monkeypatch):
    train = Tokens(torch.arange(200).repeat(5)[:900], [*map(str, range(200))])  # the first 100 come five times
    monkeypatch.setattr(data, "wikitext2", lambda root: dict.fromkeys(("train", "valid", "test"), train))
    small, large = (tasks.find("wikitext2-lstm").workload(scale, 0, "") for scale in ("tiny", "paper"))
    assert (small.model.decoder.out_features, large.model.decoder.out_features) == (100, 200)
    assert {i for inputs, _ in small.source for i in inputs.flatten().tolist()} == set(range(100))


def test_without_data_a_task_says_what_it_needs():
    with pytest.raises(data.DataError, match=r"cifar10-resnet18 needs CIFAR-10.*--data-dir.*--download"):
        tasks.find("cifar10-resnet18").workload("tiny", 0)
    with pytest.raises(data.DataError, match="imagenet-resnet34 needs ImageNet's folders"):
        tasks.find("imagenet-resnet34").workload("tiny", 0)


def test_logistic_regression_reads_a_libsvm_file(tmp_path):
    path = tmp_path / "a9a"
    path.write_text("".join(f"{'+1' if i % 2 else '-1'} {1 + i % 3}:1 4:0.{i}\n" for i in range(60)))
    for place in (path, tmp_path):
        workload = tasks.find("logistic-nonconvex").workload("tiny", 0, place)
        assert {split: len(a) for split, (a, _) in workload.all.items()} == {"train": 42, "valid": 9, "test": 9}
        assert workload.model.x.shape == (4,)


def test_the_full_gradient_of_logistic_regression_is_exact():
    workload = tasks.find("logistic-nonconvex").workload("tiny", 0)
    workload.model.x.data.normal_()
    a, y = (t.double() for t in workload.all["train"])
    x = workload.model.x.detach().double()
    by_hand = -(y * torch.sigmoid(-y * (a @ x))) @ a / len(y) + workload.lam * 2 * x / (1 + x**2) ** 2
    assert workload.full_gradient_norm() == pytest.approx(by_hand.norm().item(), rel=1e-5)
