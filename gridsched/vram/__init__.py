"""Planning is pure: header bytes and flags in, bytes for each device out. No files, no clock, no trio."""
