"""A study as a Python file: does a larger network help? In earnest: `bdpi study study.py --seeds 8 --episodes 200`."""

STUDY = {
    "title": "Does a larger network help?",
    "seeds": 2,
    "environments": {"pole": {"id": "CartPole-v1", "episodes": 12}},
    "rows": {
        "size": {
            "32 units": {"agent": "bdpi"},
            "64 units": {"agent": "bdpi", "set": {"net_arch": [64]}},
        }
    },
}

if __name__ == "__main__":
    from bdpi.cli import app

    # "local" runs one after the other; "processes", the default, uses all cores
    app(["study", __file__, "--executor", "local"], standalone_mode=False)
    app(["report", "runs/study"], standalone_mode=False)
