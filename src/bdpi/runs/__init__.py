"""One run = one agent, one environment, one seed, in one folder.

| module | its one idea |
|---|---|
| ``plan`` | what to run, before anything runs |
| ``settings`` | ``name=value`` texts become checked hyper-parameters |
| ``build`` | a plan becomes an environment and an agent |
| ``folder`` | the files of a run, written so that a crash leaves either the old or the new one |
| ``episodes`` | the episodes of a run: Monitor's CSV, the moving average, the summary |
| ``progress`` | where a run stands, for anybody who wants to look |
| ``train`` | start or resume a run; nothing is lost when it stops |
| ``curve``, ``video`` | the pictures of a run |
| ``play`` | a saved agent acts |
| ``live`` | the views of a terminal and of a log file |

Nothing here prints, except the views in ``live``. Importing these modules is fast: what needs PyTorch, Gymnasium or
Matplotlib imports them when it runs.
"""
