"""stub"""
class TraceDiff: pass
def diff_traces(): pass
