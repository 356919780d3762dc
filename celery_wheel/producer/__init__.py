"""The producer's side: an app's delayed tasks become messages in the wheel queue.

::

    app.send_task ─► eta ─► interception ─► wheel queue      options      ``wheel=`` of a call
                             └─ destination                  transaction  ``wheel_transactional``: the store's inbox
                                                             rescue       messages that reached a worker undiverted
"""
