"""PLAN -> DELTA: pure rules, one per module. Nothing here touches a server."""
