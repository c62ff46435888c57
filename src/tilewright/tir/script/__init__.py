"""The script dialect: printing loop programs as Python text and parsing them back."""
