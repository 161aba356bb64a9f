"""What needs many stored images: experiments, reports, scenes, cards, tuning and the paper's studies."""
