"""What is run, as values: operators and storages, the calls behind them, the steps of a plan, the rates of lanes."""
