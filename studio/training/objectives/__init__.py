"""What a run can learn, an objective a file, with the options of DALL·E."""
