"""The page that shows what flows back: the document that it draws, and the file that is written."""
