"""`gtmsm reproduce`: rows of the table, trained and scored; results as JSON, and the pages made of it."""

from gtmsm.reproduce.rows import ROWS, Row, choose_rows
from gtmsm.reproduce.work import Failed, Order, reproduce

__all__ = ["ROWS", "Failed", "Order", "Row", "choose_rows", "reproduce"]
