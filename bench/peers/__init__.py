"""What Openshelf is measured against: other systems and other policies, and what to install for them."""
