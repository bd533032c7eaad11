"""Operations: reads and commands for operators, such as statistics, dead letters, policies and providers."""
