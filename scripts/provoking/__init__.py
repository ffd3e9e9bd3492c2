"""What users do wrong: the files they give and the commands they type."""
