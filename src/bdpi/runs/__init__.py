"""One run = one agent, one environment, one seed, in one folder.

| module | its one idea |
|---|---|
| ``plan`` | what to run, before anything runs |
| ``presets`` | the paper's environments, and what a run changes by itself |
| ``settings`` | ``name=value`` texts become checked hyper-parameters |
| ``build`` | a plan becomes an environment and an agent |
| ``folder`` | the files of a run, written so that a crash leaves either the old or the new one |
| ``episodes`` | the episodes of a run: Monitor's CSV, the moving average, the summary |
| ``progress`` | where a run stands, for anybody who wants to look |
| ``train``, ``keeper`` | start or resume a run; nothing is lost when it stops |
| ``tester`` | test episodes between the training episodes of a noisy run |
| ``signals`` | Ctrl-C and ``kill`` become a polite request to stop |
| ``curve``, ``video`` | the pictures of a run |
| ``populations`` | a population that learned in Python becomes runs |
| ``play`` | a saved agent acts |
| ``live``, ``text`` | the views of a terminal and of a log file |
| ``doctor``, ``versions`` | what is installed |

Nothing here prints, except the views in ``live``. Importing ``train`` is fast: PyTorch, SB3 and Matplotlib are imported
by the functions that need them.
"""
