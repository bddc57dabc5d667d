"""``python -m bdpi.zoo``: RL-Zoo's commands, which know our agents."""

import sys

from bdpi.zoo import HYPERPARAMETERS

_COMMANDS = ("train", "enjoy", "plot_train", "all_plots", "plot_from_file")

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in _COMMANDS:
        sys.exit(f"usage: python -m bdpi.zoo {{{','.join(_COMMANDS)}}} ...\nhyper-parameters: {HYPERPARAMETERS}")
    from rl_zoo3 import cli

    cli.main()
