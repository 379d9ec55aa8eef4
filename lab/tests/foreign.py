"""A stand-in for packages of optimizers: what they look like, in a file of its own."""

FILE = '''
import torch


class Plain(torch.optim.Optimizer):
    """SGD with a momentum for each of two betas, which are unused but there."""

    def __init__(self, params, lr=0.1, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"])  # as torch, to the last bit on every processor


class Named(Plain):
    def __init__(self, named_parameters, lr=0.1):
        named = list(named_parameters)
        super().__init__([p for _, p in named], lr)
        self.names = [name for name, _ in named]


class OfModel(Plain):
    def __init__(self, model, lr=0.1):
        super().__init__(model.parameters(), lr)


class Twice(Plain):
    """Needs a closure, and calls it twice; takes the second gradient."""

    def step(self, closure):
        closure()
        loss = closure()
        super().step()
        return loss


class Sam(torch.optim.Optimizer):
    """Uphill by rho, and then a step of the base optimizer with the gradient from there: in two calls."""

    def __init__(self, params, base_optimizer, rho=0.05, **options):
        super().__init__(params, {"rho": rho, **options})
        self.base_optimizer = base_optimizer(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        params = [(p, group["rho"]) for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p, _ in params]).norm()
        for p, rho in params:
            self.state[p]["old"] = p.detach().clone()
            p.add_(p.grad * (rho / (norm + 1e-12)))

    def second_step(self, zero_grad=False):
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.copy_(self.state[p]["old"])
        self.base_optimizer.step()

    def step(self, closure=None):
        raise NotImplementedError("call first_step and second_step")


class SamByClosure(Sam):
    first_step = second_step = property()  # it has none

    def step(self, closure):
        loss = closure()
        Sam.first_step(self)
        closure()
        Sam.second_step(self)
        return loss


class Thrice(Sam):
    def third_step(self): ...


class Sharp(Sam):
    def first_step(self, loss): ...


class Wants(Plain):
    def step(self, loss, hessian): ...


class NoRate(Plain):
    def __init__(self, params, lr=0.1):
        super().__init__(params, lr)
        for group in self.param_groups:
            del group["lr"]


class Free(Plain):
    """Gradients are taken at y, the result is x, in between: as schedule-free optimizers, inexactly there and back."""

    training = False

    def train(self):
        if not self.training:
            self._shift(+0.1)
        self.training = True

    def eval(self):
        if self.training:
            self._shift(-0.1)
        self.training = False

    @torch.no_grad()
    def _shift(self, by):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(by)

    def step(self, closure=None):
        assert self.training
        super().step()


class Breaks(Plain):
    calls = 0

    def step(self):
        self.calls += 1
        if self.calls == 3:
            raise RuntimeError("no third step")
        super().step()


class Leaves(Plain):
    def step(self):
        raise SystemExit("goodbye")


def sgd(params, lr=0.1):
    return torch.optim.SGD(params, lr)


seven = 7
'''


def written(folder):
    """The file, and how its optimizers are called."""
    path = folder / "stand_in.py"
    path.write_text(FILE)
    return path
