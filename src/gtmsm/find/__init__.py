"""Where was this picture seen? A walk as a file to ask about, and the answer in words and as a figure."""

from gtmsm.find.localise import find_picture
from gtmsm.find.walk import record_walk

__all__ = ["find_picture", "record_walk"]
