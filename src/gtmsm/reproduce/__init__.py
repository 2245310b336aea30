"""`gtmsm reproduce`: train and score rows of the table, write results as JSON, and make pages of them."""

from gtmsm.reproduce.rows import ROWS, Row, choose_rows
from gtmsm.reproduce.work import Failed, Order, reproduce

__all__ = ["ROWS", "Failed", "Order", "Row", "choose_rows", "reproduce"]
