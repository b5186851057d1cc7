"""Tests: folders mirror colmet/; support/ holds what tests share; beds/ has real counterparts."""
