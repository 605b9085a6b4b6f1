"""How often certified promises on quality are broken, and what certifying costs in savings, on labels."""
