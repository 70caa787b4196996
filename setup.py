"""All metadata is in setup.cfg; this file lets older tools find it."""

from setuptools import setup

setup()
