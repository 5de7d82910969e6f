"""The supported decoders over paged K/V and pooled recurrent state."""
