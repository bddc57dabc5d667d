"""A study of scales: how BDPI should see observations and rewards."""
