"""The pages of recurring schedules.

::

    listing    the list, with its filters                       reads the store
    detail     one schedule                                     reads the store
      └ runs      its last runs and skips, as marks of a chart
      └ history   its revisions, with what each changed
    acts       an action: confirmation, request, results        asks the holders
      └ actions   the actions, with their texts and forms
      └ selection the schedules that a browser sent
    editing    the form and its preview                         asks the holders to save
"""
