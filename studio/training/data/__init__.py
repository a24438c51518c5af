"""What a run learns from: files, tables and archives of examples, their captions and images."""
