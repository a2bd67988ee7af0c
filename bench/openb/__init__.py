"""The experiment of the FGD paper on Alibaba's openb trace: its data, and strategies from their definitions."""
