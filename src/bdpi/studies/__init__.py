"""Studies: which runs make a comparison, as plain tables. See ``figure2.yaml`` for one to copy and change."""

from bdpi.studies.study import Study, load_protocol, load_study, study_names

__all__ = ["Study", "load_protocol", "load_study", "study_names"]
