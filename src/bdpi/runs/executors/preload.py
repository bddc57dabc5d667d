"""What the processes of a study have in common: imported once, by the server that forks them."""

import torch

import bdpi.runs.train  # noqa: F401

torch.set_num_threads(1)
