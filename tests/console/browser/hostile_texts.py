"""Texts that a page must show as text: markup, scripts, template syntax; and texts that it must not damage.

Each payload calls `alert`, so that a browser reports a dialog if one of them runs.
"""

from __future__ import annotations

IMAGE = "<img src=x onerror=alert('image')>"
IMAGE_WITHOUT_SPACES = "<img/src=x/onerror=alert('key')>"  # keys are separated by spaces
SCRIPT = "</script><script>alert('script')</script>"
ATTRIBUTE = "\" autofocus onfocus=\"alert('attribute')\" x='"
TEMPLATE = "{{ 7 * 7 }}${7*7}<svg/onload=alert('template')>"
EVALUATED = ("49${7*7}", "{{ 7 * 7 }}49")  # TEMPLATE, if a page evaluated it
FORMULA = '=HYPERLINK("http://example.com","x")'  # a spreadsheet would run it
CHINESE = "订单已创建，祝您购物愉快"
EMOJI = "📦👩‍👩‍👧‍👦 é"
RIGHT_TO_LEFT = "\u202eevil\u202c \u05e9\u05dc\u05d5\u05dd"  # reverses the text after it

ALL = (IMAGE, SCRIPT, ATTRIBUTE, TEMPLATE, FORMULA, CHINESE, EMOJI, RIGHT_TO_LEFT)

# Names that a broker's checks reject where they are created; they can be in its files, or come from clients of other brokers.
TOPIC = "<img src=x onerror=alert('topic')>"
GROUP = "<img src=x onerror=alert('group')>"
CLIENT_ID = "10.0.0.9@<img src=x onerror=alert('client')>"
