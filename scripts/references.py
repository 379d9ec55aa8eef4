"""Where each method of the zoo was published: authors and year, title, and arXiv number or address."""

ARXIV = "https://arxiv.org/abs/"

ADAM = ("Kingma and Ba 2015", "Adam: A Method for Stochastic Optimization", "1412.6980")
ADAMW = ("Loshchilov and Hutter 2019", "Decoupled Weight Decay Regularization", "1711.05101")
NADAM = (
    "Dozat 2016",
    "Incorporating Nesterov Momentum into Adam",
    "https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ",
)
MARS = ("Yuan et al. 2024", "MARS: Unleashing the Power of Variance Reduction for Training Large Models", "2411.10438")

REFERENCES = {
    "adabelief": (
        "Zhuang et al. 2020",
        "AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed Gradients",
        "2010.07468",
    ),
    "adabound": ("Luo et al. 2019", "Adaptive Gradient Methods with Dynamic Bound of Learning Rate", "1902.09843"),
    "adadelta": ("Zeiler 2012", "ADADELTA: An Adaptive Learning Rate Method", "1212.5701"),
    "adafactor": (
        "Shazeer and Stern 2018",
        "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost",
        "1804.04235",
    ),
    "adagrad": (
        "Duchi et al. 2011",
        "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization",
        "https://jmlr.org/papers/v12/duchi11a.html",
    ),
    "adagrad_norm": (
        "Ward et al. 2019",
        "AdaGrad Stepsizes: Sharp Convergence over Nonconvex Landscapes",
        "1806.01811",
    ),
    "adam": ADAM,
    "adam_mini": ("Zhang et al. 2024", "Adam-mini: Use Fewer Learning Rates To Gain More", "2406.16793"),
    "adam_plus": ("Liu et al. 2020", "Adam⁺: A Stochastic Method with Adaptive Variance Reduction", "2011.11985"),
    "adamax": ADAM,
    "adamw": ADAMW,
    "adan": (
        "Xie et al. 2022",
        "Adan: Adaptive Nesterov Momentum Algorithm for Faster Optimizing Deep Models",
        "2208.06677",
    ),
    "adaptive_sgd": (
        "Li and Orabona 2019",
        "On the Convergence of Stochastic Gradient Descent with Adaptive Stepsizes",
        "1805.08114",
    ),
    "ademamix": ("Pagliardini et al. 2024", "The AdEMAMix Optimizer: Better, Faster, Older", "2409.03137"),
    "adopt": (
        "Taniguchi et al. 2024",
        "ADOPT: Modified Adam Can Converge with Any β2 with the Optimal Rate",
        "2411.02853",
    ),
    "amsgrad": ("Reddi et al. 2018", "On the Convergence of Adam and Beyond", "1904.09237"),
    "asgd": (
        "Polyak and Juditsky 1992",
        "Acceleration of Stochastic Approximation by Averaging",
        "https://doi.org/10.1137/0330046",
    ),
    "cautious_adamw": (
        "Liang et al. 2024",
        "Cautious Optimizers: Improving Training with One Line of Code",
        "2411.16085",
    ),
    "dog": ("Ivgi et al. 2023", "DoG is SGD's Best Friend: A Parameter-Free Dynamic Step Size Schedule", "2302.12022"),
    "generalized_adam": (
        "Chen et al. 2019",
        "On the Convergence of a Class of Adam-Type Algorithms for Non-Convex Optimization",
        "1808.02941",
    ),
    "kl_shampoo": (
        "Lin et al. 2025",
        "Understanding and Improving Shampoo and SOAP via Kullback-Leibler Minimization",
        "2509.03378",
    ),
    "lamb": (
        "You et al. 2020",
        "Large Batch Optimization for Deep Learning: Training BERT in 76 Minutes",
        "1904.00962",
    ),
    "lars": ("You et al. 2017", "Large Batch Training of Convolutional Networks", "1708.03888"),
    "limuon": ("Huang et al. 2025", "LiMuon: Light and Fast Muon Optimizer for Large Models", "2509.14562"),
    "lion": ("Chen et al. 2023", "Symbolic Discovery of Optimization Algorithms", "2302.06675"),
    "mars": MARS,
    "mars_approx": MARS,
    "mars_m": ("Liu et al. 2025", "MARS-M: When Variance Reduction Meets Matrices", "2510.21800"),
    "mars_shampoo": MARS,
    "muon": (
        "Jordan et al. 2024",
        "Muon: An Optimizer for Hidden Layers in Neural Networks",
        "https://kellerjordan.github.io/posts/muon/",
    ),
    "nadam": NADAM,
    "nadamw": NADAM,
    "nigt": ("Cutkosky and Mehta 2020", "Momentum Improves Normalized SGD", "2002.03305"),
    "padam": (
        "Chen and Gu 2018",
        "Closing the Generalization Gap of Adaptive Gradient Methods in Training Deep Neural Networks",
        "1806.06763",
    ),
    "prodigy": (
        "Mishchenko and Defazio 2024",
        "Prodigy: An Expeditiously Adaptive Parameter-Free Learner",
        "2306.06101",
    ),
    "psgd_kron": ("Li 2018", "Preconditioned Stochastic Gradient Descent", "1512.04202"),
    "radam": ("Liu et al. 2020", "On the Variance of the Adaptive Learning Rate and Beyond", "1908.03265"),
    "rmsprop": (
        "Hinton 2012",
        "Neural Networks for Machine Learning, lecture 6e",
        "https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf",
    ),
    "rprop": (
        "Riedmiller and Braun 1993",
        "A Direct Adaptive Method for Faster Backpropagation Learning: The RPROP Algorithm",
        "https://doi.org/10.1109/ICNN.1993.298623",
    ),
    "sadagrad": (
        "Chen et al. 2018",
        "SADAGRAD: Strongly Adaptive Stochastic Gradient Methods",
        "https://proceedings.mlr.press/v80/chen18m.html",
    ),
    "sc_adagrad": (
        "Mukkamala and Hein 2017",
        "Variants of RMSProp and Adagrad with Logarithmic Regret Bounds",
        "1706.05507",
    ),
    "schedule_free_adamw": ("Defazio et al. 2024", "The Road Less Scheduled", "2405.15682"),
    "sdlbfgs": (
        "Wang et al. 2017",
        "Stochastic Quasi-Newton Methods for Nonconvex Stochastic Optimization",
        "1607.01231",
    ),
    "sgd": ("Robbins and Monro 1951", "A Stochastic Approximation Method", "https://doi.org/10.1214/aoms/1177729586"),
    "shampoo": ("Gupta et al. 2018", "Shampoo: Preconditioned Stochastic Tensor Optimization", "1802.09568"),
    "soap": ("Vyas et al. 2024", "SOAP: Improving and Stabilizing Shampoo using Adam", "2409.11321"),
    "sophia_g": (
        "Liu et al. 2023",
        "Sophia: A Scalable Stochastic Second-Order Optimizer for Language Model Pre-Training",
        "2305.14342",
    ),
    "stable_adamw": (
        "Wortsman et al. 2023",
        "Stable and Low-Precision Training for Large-Scale Vision-Language Models",
        "2304.13013",
    ),
    "storm": ("Cutkosky and Orabona 2019", "Momentum-Based Variance Reduction in Non-Convex SGD", "1905.10018"),
    "adamw_ahead": ("this project 2026", "A First Search, Without Warm-Up", "../research/first_search/README.md"),
    "super_adam": (
        "Huang et al. 2021",
        "SUPER-ADAM: Faster and Universal Framework of Adaptive Gradients",
        "2106.08208",
    ),
    "super_adam_plus": (
        "this project 2026",
        "Is SUPER-ADAM⁺ Faster than Tuned AdamW?",
        "results.md#is-super-adam-faster-than-tuned-adamw",
    ),
    "yogi": (
        "Zaheer et al. 2018",
        "Adaptive Methods for Nonconvex Optimization",
        "https://papers.nips.cc/paper/8186-adaptive-methods-for-nonconvex-optimization",
    ),
}


def address(number):
    return f"{ARXIV}{number}" if number[:4].isdigit() else number


def paper(name, *, title=False, root=""):
    """Where a method comes from, as Markdown; `root` leads to the folder of the pages.

    >>> paper("adam")
    '[Kingma and Ba 2015](https://arxiv.org/abs/1412.6980), arXiv 1412.6980'
    """
    authors, words, number = REFERENCES[name]
    arxiv = f", arXiv {number}" if number[:4].isdigit() else ""
    where = address(number) if "://" in address(number) else root + number
    return f"{authors}, [{words}]({where}){arxiv}" if title else f"[{authors}]({where}){arxiv}"
