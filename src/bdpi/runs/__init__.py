"""One run = one agent, one environment, one seed, in one folder.

| module | its one idea |
|---|---|
| ``config`` | what ``config.json`` holds: what to run, and how far that has come |
| ``presets`` | the paper's environments, and what a run changes by itself |
| ``settings`` | ``name=value`` texts become checked hyper-parameters |
| ``build`` | a configuration becomes an environment and an agent |
| ``folder`` | the files of a run, and what a crash leaves of them |
| ``episodes`` | the episodes of a run: Monitor's CSV, the moving average, the summary |
| ``progress`` | where a run stands, for views |
| ``session`` | learn, save, draw: the same for all runs, with a driver for each kind |
| ``train``, ``peers``, ``offline`` | prepare a run, and its driver: an agent, a peer, an agent that reads a journal |
| ``recorder`` | the callbacks that count steps and episodes, and end a run in time |
| ``tester`` | test episodes between the training episodes of a noisy run |
| ``signals`` | Ctrl-C and ``kill`` become a polite request to stop |
| ``job``, ``campaign``, ``executors`` | many runs: one of them, all of them, and where they are executed |
| ``results`` | the runs of a study, read back, and archives of them |
| ``populations`` | a population that learned in Python becomes runs |
| ``curve``, ``video``, ``play`` | the pictures of a run; a saved agent acts |
| ``live``, ``formatting`` | the views of a terminal and of a log file |
| ``check``, ``doctor``, ``versions`` | a look at an environment; what is installed |

Nothing here prints, except the views in ``live``. Importing ``train`` is fast: PyTorch, SB3 and Matplotlib are imported
by the functions that need them.
"""
