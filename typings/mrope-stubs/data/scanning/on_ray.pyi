from data.scanning.on_ray import unseen as unseen
