"""Does the real engine keep what the mock promises? The scheduler in front of an engine, and what is compared.

What ``metrale conform`` and ``tools/gpu_check.py`` run. Free and late mode need torch alone; forced mode also reads
scenarios, for which it needs pydantic.
"""
