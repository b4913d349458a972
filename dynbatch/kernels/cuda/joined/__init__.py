"""Launches that several kernels share: functions of elements, norms behind them, sums."""
