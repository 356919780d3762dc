"""The pages of recurring schedules.

::

    listing    the list, with its filters                       reads the store
    detail     one schedule                                     reads the store
      └ runs      its last runs and skips, as marks of a chart
      └ history   its revisions, with the values that each changed
    acts       actions on schedules, and their confirmation     ask the holders
    editing    the form and its preview                         asks the holders to save
"""
