"""The texts of ``celery_wheel.recurring.words`` for the translators: makemessages reads this package alone.

A file of its own: nothing uses the list at run time. ``tests/admin/test_german.py`` compares it with the other module.
"""

from __future__ import annotations

from django.utils.translation import gettext_noop as _

RECURRENCE_TEXTS = (
    *(_("every year"), _("every %(number)s years"), _("every month"), _("every %(number)s months")),
    *(_("every week"), _("every %(number)s weeks"), _("every day"), _("every %(number)s days")),
    *(_("every hour"), _("every %(number)s hours"), _("every minute"), _("every %(number)s minutes")),
    *(_("every second"), _("every %(number)s seconds"), _("every %(duration)s")),
    *(_("on the first %(day)s"), _("on the second %(day)s"), _("on the third %(day)s"), _("on the fourth %(day)s")),
    *(_("on the last %(day)s"), _("on the last day of the month"), _("on day %(days)s of the month")),
    *(_("on %(days)s"), _("in %(months)s"), _("%(first)s to %(last)s"), _("minute %(minute)s")),
    *(_("at %(times)s"), _("every day at %(times)s"), _("from %(first)s to %(last)s")),
    _("at hour %(hour)s, minute %(minute)s, second %(second)s"),
    *(_("from %(time)s"), _("until %(time)s"), _("at most %(number)s times"), _("once, at %(time)s")),
    *(_("%(number)s times from %(first)s to %(last)s"), _("%(event)s at %(place)s")),
    *(_("only on %(days)s"), _("except %(days)s"), _("all but %(days)s"), _("%(days)s and %(others)s")),
    *(_("%(number)s dates"), _("holidays of %(place)s"), _("business days of %(place)s"), _("%(duration)s %(spec)s")),
    *(_("astronomical dawn"), _("nautical dawn"), _("civil dawn"), _("sunrise"), _("solar noon"), _("sunset")),
    *(_("civil dusk"), _("nautical dusk"), _("astronomical dusk")),
    *(_("Monday"), _("Tuesday"), _("Wednesday"), _("Thursday"), _("Friday"), _("Saturday"), _("Sunday")),
    *(_("January"), _("February"), _("March"), _("April"), _("May"), _("June"), _("July"), _("August")),
    *(_("September"), _("October"), _("November"), _("December")),
)
