"""What planner says: text for people (`Look` decides width and colour) and documents for programs. Nothing here decides anything."""
